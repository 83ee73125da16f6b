// Swagger UI over this server's own description.

SwaggerUIBundle({
  url: new URL("openapi.json", document.baseURI).href,
  dom_id: "#reference",
  deepLinking: true,
  validatorUrl: null, // its badge would show the description to another host
});
